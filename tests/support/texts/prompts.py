"""Beginnings that the trained tiny model goes on with."""

PROMPTS = (
    "In the beginning God created the heaven and the earth.",
    "And it came to pass, when the king heard the words of the",
    "It is a truth universally acknowledged, that a single man",
    "Blessed is the man that walketh not in the counsel of",
    "The old gentleman shook his head, and said to the boy,",
    "And he said unto them, Go ye therefore into all the",
    "She looked out of the window, and saw that the carriage",
    "There was no possibility of taking a walk that day. We had",
    "The LORD is my shepherd; I shall not want. He maketh me",
    '"I do not know what you mean," said he, with a smile,',
    "Now these are the names of the children of Israel, which",
    "It was a dark and stormy night; the rain fell in torrents",
    "Then Jesus answered and said unto him, Verily, verily, I say",
    "My dear sister, I have received your letter, and I hope",
    "And the sons of Noah, that went forth of the ark, were",
    "The captain went on deck, and ordered the men to",
    "Moreover the word of the LORD came unto me, saying,",
    "He had been for some time in love with the young lady,",
    "And I saw a new heaven and a new earth: for the first",
    "1 2 3 4 5 6 7 8 9 10 11 12",
)
