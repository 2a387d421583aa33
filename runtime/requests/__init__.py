"""What a request asks for, and its completion in the making."""
