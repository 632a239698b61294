"""Sample caches with real daemons and real makers: how they are built, read and looked after; what hostile ones may
do."""
