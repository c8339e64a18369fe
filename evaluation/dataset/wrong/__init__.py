"""Which tile programs are wrong, and how many."""
