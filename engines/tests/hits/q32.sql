-- Filter for one counter.
SELECT url, count(*) AS views
FROM hits
WHERE counter_id = 62 AND event_date >= DATE '2013-07-01' AND event_date <= DATE '2013-07-31' AND dont_count_hits = 0 AND is_refresh = 0 AND url <> ''
GROUP BY url
ORDER BY views DESC, url
LIMIT 10
