"""The demo's input, all generated: images and videos with verifiable questions, a tokenizer, small models."""
