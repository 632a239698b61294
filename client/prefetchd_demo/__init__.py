"""`prefetchd demo` runs the same training through the daemon, through DataLoader and with a sample cache, side by side.

The demo itself (`__main__`) trains nothing: it starts trainers as processes of their own, as a person would, listens to
what they tell (`trainer_messages`), kills them, starts them again, and shows what was measured.
"""
