"""Images as a vision tower reads them: decoded under limits, resized to whole tokens, cut into patches."""
