"""What another user of the machine, a hostile file or a hostile state may try. docs/reliability.md has the table of
threats, and names the test of each."""
