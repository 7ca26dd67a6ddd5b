"""The norm of each role: its LMO and its dual norm."""
