"""The studio: a local web page to label a few sites and see the predictions for all others (``mssvm studio``).

journal     every mark is on disk before its request is answered; a killed studio loses nothing
project     classes, items, and the marks on them, with undo and redo
pictures    strokes on the pictures of a folder
sequences   tags on the words of sentences, or on the sites of series
votes       where several people agree, and where they do not
learner     a thread that trains from the last weights, and is stopped by the next mark
server      HTTP on the loopback interface, with a token; ``static`` holds the page
"""
