-- A table as in web analytics, with {rows} rows: few frequent values and many seldom ones, addresses, search phrases
-- that are mostly empty, and times that grow with the row. All values are made by hashing the row number.
--
-- The expected answers are made in the same run as the data, so a later version of the hash function does no harm.
CREATE OR REPLACE TABLE hits AS
WITH
    -- Uniform numbers below one, each independent of the others.
    dice AS (
        SELECT
            i,
            (hash(i, 'user') % 1000003) / 1000003.0::DOUBLE AS u_user,
            (hash(i, 'counter') % 1000003) / 1000003.0::DOUBLE AS u_counter,
            (hash(i, 'region') % 1000003) / 1000003.0::DOUBLE AS u_region,
            (hash(i, 'page') % 1000003) / 1000003.0::DOUBLE AS u_page,
            (hash(i, 'phrase') % 1000003) / 1000003.0::DOUBLE AS u_phrase,
            (hash(i, 'phone') % 1000003) / 1000003.0::DOUBLE AS u_phone,
            (hash(i, 'engine') % 1000003) / 1000003.0::DOUBLE AS u_engine,
            (hash(i, 'referer') % 1000003) / 1000003.0::DOUBLE AS u_referer,
            (hash(i, 'rest') % 9223372036854775807)::BIGINT AS rest
        FROM range({rows}) AS t (i)
    ),
    skewed AS (
        SELECT
            *,
            floor(greatest({rows} / 10, 100) * pow(u_user, 2.5))::BIGINT AS user_rank,
            floor(6000 * pow(u_counter, 4))::INTEGER AS counter_rank,
            floor(5000 * pow(u_page, 3))::BIGINT AS page_rank,
            floor(900 * pow(u_phrase, 2))::BIGINT AS phrase_rank
        FROM dice
    ),
    placed AS (
        SELECT
            *,
            'http://' || ['news', 'shop', 'auto', 'google-games', 'maps', 'video', 'mail', 'forum'][counter_rank % 8 + 1]
            || '.example' || (counter_rank % 40) || '.test/' || ['index', 'list', 'item', 'search'][page_rank % 4 + 1]
            || CASE WHEN page_rank < 20 THEN '' ELSE '/' || page_rank || '?id=' || (rest % 977) END AS url,
            CASE
                WHEN u_phrase < 0.8 THEN ''
                ELSE ['cheap', 'best', 'new', 'how to', 'free', 'google'][phrase_rank % 6 + 1] || ' '
                    || ['tyres', 'flights', 'recipe', 'games', 'windows', 'карта', '天気'][phrase_rank % 7 + 1]
                    || CASE WHEN phrase_rank % 3 = 0 THEN '' ELSE ' ' || phrase_rank END
            END AS phrase
        FROM skewed
    )
SELECT
    rest AS watch_id,
    TIMESTAMP '2013-07-01 00:00:00' + to_seconds((i * 2678400) // {rows}) AS event_time,
    (TIMESTAMP '2013-07-01 00:00:00' + to_seconds((i * 2678400) // {rows}))::DATE AS event_date,
    (counter_rank + 1)::INTEGER AS counter_id,
    (1000000007 + user_rank * 28629335557)::BIGINT AS user_id,
    (hash(user_rank, 'address') % 4294967296)::BIGINT AS client_ip,
    floor(300 * pow(u_region, 2))::INTEGER AS region_id,
    (rest % 7 < 6)::SMALLINT AS java_enabled,
    (rest % 83 = 0)::SMALLINT AS is_refresh,
    (rest % 11 = 0)::SMALLINT AS is_link,
    (rest % 97 = 0)::SMALLINT AS is_download,
    (rest % 5 = 4)::SMALLINT AS dont_count_hits,
    [1024, 1280, 1366, 1440, 1600, 1920, 0][rest % 7 + 1]::SMALLINT AS resolution_width,
    (rest % 2000)::SMALLINT AS window_width,
    (rest // 2000 % 1200)::SMALLINT AS window_height,
    (rest % 89)::SMALLINT AS user_agent,
    CASE WHEN u_phone < 0.9 THEN 0 ELSE floor(60 * pow((u_phone - 0.9) * 10, 2)) + 1 END::SMALLINT AS mobile_phone,
    CASE
        WHEN u_phone < 0.9 THEN ''
        ELSE ['iPad', 'iPhone', 'Nexus', 'A', 'Lumia 920', 'GT-I9500'][(floor(60 * pow((u_phone - 0.9) * 10, 2))::INTEGER) % 6 + 1]
    END AS mobile_phone_model,
    floor(10 * pow(u_engine, 3))::SMALLINT AS traffic_source_id,
    CASE WHEN phrase = '' THEN 0 ELSE floor(40 * pow(u_engine, 2)) + 1 END::SMALLINT AS search_engine_id,
    CASE WHEN u_engine < 0.95 THEN 0 ELSE (rest % 30) + 1 END::SMALLINT AS adv_engine_id,
    phrase AS search_phrase,
    url,
    CASE WHEN u_referer < 0.3 THEN NULL WHEN u_referer < 0.4 THEN ''
        ELSE 'http://' || ['www.', ''][rest % 2 + 1] || 'site' || floor(3000 * pow(u_referer, 5))::INTEGER || '.test/' || (rest % 50)
    END AS referer,
    CASE WHEN page_rank % 9 = 0 THEN '' ELSE 'Title of ' || url END AS title,
    (hash(url) % 9223372036854775807)::BIGINT AS url_hash,
    ((rest % 100000) / 100)::DECIMAL(12, 2) AS price
FROM placed
ORDER BY i
