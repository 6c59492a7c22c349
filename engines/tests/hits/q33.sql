-- Filter for one counter and eleven days.
SELECT title, count(*) AS views
FROM hits
WHERE counter_id = 1 AND event_date BETWEEN DATE '2013-07-10' AND DATE '2013-07-20' AND dont_count_hits = 0 AND is_refresh = 0 AND title <> ''
GROUP BY title
ORDER BY views DESC, title
LIMIT 10
