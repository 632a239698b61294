"""The package is one loader's conversation with the daemon: its handshake, its cursors, what it is offered and what it
gives back."""
