-- Groups of long texts.
SELECT url, count(*) AS c
FROM hits
GROUP BY url
ORDER BY c DESC, url
LIMIT 10
