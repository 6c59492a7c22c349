-- Sums that share a column.
SELECT sum(resolution_width) AS a, sum(resolution_width + 1) AS b, sum(resolution_width + 2) AS c, sum(resolution_width + 3) AS d, sum(resolution_width + 4) AS e
FROM hits
