"""Text: from files through tokenizer and cache to language-model examples."""
