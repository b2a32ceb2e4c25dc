"""Which method should you run? Candidates, an equal tuning budget for each, finalists over seeds, an answer in sentences."""
