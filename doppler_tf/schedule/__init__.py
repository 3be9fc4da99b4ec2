"""What runs where and when: assignments, the rules of time, the exact simulator, traces and what holds for them."""
