"""Messages between processes: a compact binary form, over local sockets or TCP."""
