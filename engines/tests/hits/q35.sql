-- Filter for two days, and groups of two small keys.
SELECT window_width, window_height, count(*) AS views
FROM hits
WHERE event_date >= DATE '2013-07-14' AND event_date <= DATE '2013-07-15' AND is_refresh = 0 AND dont_count_hits = 0
GROUP BY window_width, window_height
ORDER BY views DESC, window_width, window_height
LIMIT 10
