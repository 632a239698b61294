"""What the pages tell a reader to type is typed: each block of code in a fresh directory."""
