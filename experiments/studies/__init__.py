"""Studies: tracked experiments that measure claims of the README again; ``docs/studies.md`` lists the claims."""
