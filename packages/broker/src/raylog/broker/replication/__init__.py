"""Leaders, followers and waiting requests, in terms of offsets; knows no logs."""
