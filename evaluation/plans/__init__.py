"""Which regions to measure, judge and time next: small programs recorded exhaustively, and ways to choose."""
