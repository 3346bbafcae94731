"""Administration of a broker by tools: topics, groups, settings, files, figures."""
