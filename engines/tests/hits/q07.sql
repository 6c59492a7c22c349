-- From the statistics alone.
SELECT min(event_date) AS first, max(event_date) AS last
FROM hits
