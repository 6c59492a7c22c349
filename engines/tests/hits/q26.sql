-- Groups by length of text, HAVING.
SELECT counter_id, avg(length(url)) AS l, count(*) AS c
FROM hits
WHERE url <> ''
GROUP BY counter_id
HAVING count(*) > 100
ORDER BY l DESC, counter_id
LIMIT 25
