-- Extremes of a column, which the table's statistics contain.
SELECT min(event_date) AS first, max(event_date) AS last
FROM hits
