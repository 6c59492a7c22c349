-- Text groups under a filter.
SELECT mobile_phone_model, count(DISTINCT user_id) AS u
FROM hits
WHERE mobile_phone_model <> ''
GROUP BY mobile_phone_model
ORDER BY u DESC, mobile_phone_model
LIMIT 10
