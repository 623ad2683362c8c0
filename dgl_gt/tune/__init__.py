"""The search for a good model: recipes of published models, and trials of them within a time that the user sets."""
