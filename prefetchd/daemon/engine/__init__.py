"""The pure engine: events come in as method calls, decisions go out as commands. No I/O, no clock, no torch."""
