-- Groups of five keys, of which one is computed.
SELECT traffic_source_id, search_engine_id, adv_engine_id, CASE WHEN search_engine_id = 0 AND adv_engine_id = 0 THEN referer ELSE '' END AS src, url AS dst, count(*) AS views
FROM hits
WHERE counter_id < 20 AND event_date >= DATE '2013-07-01' AND is_refresh = 0
GROUP BY traffic_source_id, search_engine_id, adv_engine_id, src, dst
ORDER BY views DESC, traffic_source_id, search_engine_id, adv_engine_id, src NULLS LAST, dst
LIMIT 10 OFFSET 100
