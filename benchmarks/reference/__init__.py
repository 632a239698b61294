"""The package has systems whose users must be able to move over: their way and ours, side by side."""
