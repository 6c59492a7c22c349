-- Very many groups. One key is computed.
SELECT user_id, extract(minute FROM event_time) AS m, search_phrase, count(*) AS c
FROM hits
GROUP BY user_id, m, search_phrase
ORDER BY c DESC, user_id, m, search_phrase
LIMIT 10
