"""What links and machines are like: measured in passing, smoothed, and forecast a little way ahead."""
