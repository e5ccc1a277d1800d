"""Request traces in the formats they were published in."""
