"""What all protocols share: requests, answers, bodies, problems."""
