-- Text: order is that of bytes, patterns are those of SQL, a character is a code point.

SELECT id, t FROM texts ORDER BY id LIMIT 60;
SELECT id, t FROM texts WHERE id >= 60 ORDER BY id;
SELECT t FROM texts WHERE t < 'a' ORDER BY t;
SELECT t FROM texts WHERE t >= 'a' AND t < 'c' ORDER BY t;
SELECT t FROM texts WHERE t > 'x' ORDER BY t;
SELECT t FROM texts ORDER BY t NULLS FIRST LIMIT 12;
SELECT t FROM texts ORDER BY t DESC NULLS LAST LIMIT 12;
SELECT min(t), max(t), count(t), count(DISTINCT t) FROM texts;
SELECT min(u), max(u) FROM texts WHERE u > 'a' AND u < 'zz';

--! for op: = | <> | < | <= | > | >=
--! for v: 'apple' | '' | 'Z' | 'é' | '日本'
SELECT count(*) FROM texts WHERE t {op} {v};
SELECT id, t FROM texts WHERE t = '' ORDER BY id;
SELECT id, t FROM texts WHERE t = ' ' ORDER BY id;
SELECT id, t FROM texts WHERE t IN ('apple', 'APPLE', 'quote''s', '"double"', 'nothing') ORDER BY id;
SELECT count(*) FROM texts WHERE t NOT IN ('apple', 'APPLE');
SELECT id, t FROM texts WHERE t BETWEEN 'apple' AND 'banana' ORDER BY id;
SELECT count(*) FROM texts WHERE t < u;
SELECT count(*) FROM texts WHERE t = u;
SELECT id FROM texts WHERE t = 'é' ORDER BY id;

--! for p: 'apple' | 'app%' | '%le' | '%pp%' | 'a%e' | '_' | '__' | '_pple' | '%' | '' | '%_' | 'a_b' | 'under_score' | '100%' | '%é%' | '日%' | '_本' | '日__' | '%😀' | '% %' | ' %' | '% ' | 'prefix_000_' | '%ss%' | 'x%x' | '%a%a%a%' | 'm%iss%p%' | 'no%thing' | '(%)' | '[a]' | '.%' | '%''s' | '%"%'
SELECT id, t FROM texts WHERE t LIKE {p} AND id % 3 <> 7 ORDER BY id LIMIT 30;
--! for p: 'app%' | '%le' | '%pp%' | '_' | '%' | '%é%'
SELECT count(*) FROM texts WHERE t NOT LIKE {p};
--! for p: 'APP%' | '%An%' | 'É' | 'z%' | 'STRA%' | '%case' | 'ΣΊΣΥΦΟΣ' | 'кир%'
SELECT id, t FROM texts WHERE t ILIKE {p} ORDER BY id;
SELECT count(*) FROM texts WHERE t NOT ILIKE 'A%';
SELECT id, t FROM texts WHERE t LIKE '%\%%' ESCAPE '\' ORDER BY id;
SELECT id, t FROM texts WHERE t LIKE '%\_%' ESCAPE '\' ORDER BY id;
SELECT id, t FROM texts WHERE t LIKE 'a\_b' ESCAPE '\' ORDER BY id;
SELECT id, t FROM texts WHERE t LIKE '%\\%' ESCAPE '\' ORDER BY id;
SELECT count(*) FROM texts WHERE t LIKE NULL;
SELECT id FROM texts WHERE t LIKE u AND t <> u ORDER BY id;

--! for p: '.*pp.*' | '[a-z]+' | '[A-Z].*' | '[0-9]+' | 'a.b' | '(apple|banana)' | '.*[^ -~].*' | 'prefix.[0-9]{4}' | '(ab)+' | 'x{13}' | '[0-9A-Za-z_]+' | '.*\d.*' | '[[:alpha:]]*' | '(?i)apple' | '\p{Greek}+' | 'a*b?' | '.*(s|p)\w{2}$'
SELECT id, t FROM texts WHERE t ~ '^(?:' || {p} || ')$' AND t !~ '[[:space:]]' ORDER BY id LIMIT 40;
SELECT count(*) FROM texts WHERE t !~ '.*a.*';
SELECT id, regexp_replace(t, '[aeiou]', '_') FROM texts WHERE id < 12 ORDER BY id;
SELECT id, regexp_replace(t, '[aeiou]', '_', 'g') FROM texts WHERE id < 12 ORDER BY id;
SELECT id, regexp_replace(t, '([0-9]+)', '<\1>', 'g') FROM texts WHERE t ~ '.*[0-9].*' ORDER BY id;

SELECT id, upper(t), lower(t) FROM texts WHERE id < 24 ORDER BY id;
SELECT id, upper(t), lower(t) FROM texts WHERE t ~ '^[à-ÿÀ-Þа-яА-Я日本]+$' ORDER BY id;
SELECT id, length(t), n FROM texts WHERE t IS NOT NULL AND length(t) <> n ORDER BY id;
SELECT sum(length(t)), max(length(t)) FROM texts;
SELECT id, length(t), bit_length(t) FROM texts WHERE t IS NULL OR t = '' ORDER BY id;
SELECT id, t || '+' || u FROM texts WHERE id < 24 ORDER BY id;
SELECT id, concat(t, '-', u), concat_ws('/', t, u, 'end') FROM texts WHERE id BETWEEN 10 AND 24 ORDER BY id;
SELECT id, substr(t, 1, 3), substr(t, 2), substring(t FROM 3 FOR 2) FROM texts WHERE id BETWEEN 56 AND 80 ORDER BY id;
SELECT id, left(t, 2), right(t, 2) FROM texts WHERE id BETWEEN 60 AND 78 ORDER BY id;
SELECT id, trim(t), ltrim(t), rtrim(t) FROM texts WHERE t LIKE '% ' OR t LIKE ' %' ORDER BY id;
SELECT trim(BOTH 'x' FROM 'xxaxx'), ltrim('xxaxx', 'x'), rtrim('xxaxx', 'x');
SELECT id, replace(t, 'a', 'AA') FROM texts WHERE t LIKE '%a%' ORDER BY id LIMIT 20;
SELECT id, strpos(t, 'a'), position('ss' IN t) FROM texts WHERE id < 24 OR t LIKE '%ss%' ORDER BY id;
SELECT id, starts_with(t, 'app'), ends_with(t, 'a'), contains(t, 'an') FROM texts WHERE id < 10 ORDER BY id;
SELECT id, lpad(t, 6, '*'), rpad(t, 6, '*') FROM texts WHERE id < 14 ORDER BY id;
SELECT id, repeat(t, 2), reverse(t) FROM texts WHERE id < 8 ORDER BY id;
SELECT id, split_part(t, '=', 1), split_part(t, '=', 2), split_part(t, '=', 3) FROM texts WHERE t LIKE '%=%' ORDER BY id;
SELECT id, translate(t, 'aeiou', '12345') FROM texts WHERE id < 6 ORDER BY id;
SELECT ascii('a'), ascii('é'), chr(65), chr(233);
SELECT id, CAST(t AS INTEGER) FROM texts WHERE t IN ('0', '1', '10', '2', '007', '-5') ORDER BY id;
SELECT id, t FROM texts WHERE TRY_CAST(t AS INTEGER) IS NOT NULL AND t <> '1e3' ORDER BY id;
SELECT id, nullif(t, ''), coalesce(nullif(t, ''), 'none') FROM texts WHERE id < 8 ORDER BY id;

SELECT left(t, 1) AS first, count(*) FROM texts GROUP BY first;
SELECT lower(t) AS l, count(*), min(t), max(t) FROM texts WHERE id < 16 GROUP BY l;
SELECT t, count(*) FROM texts WHERE id % 10 = 3 GROUP BY t;
SELECT length(t) AS l, count(*) FROM texts GROUP BY l ORDER BY l NULLS LAST;
SELECT DISTINCT upper(t) FROM texts WHERE upper(t) < 'D';
SELECT string_agg(t, ',' ORDER BY t) FROM texts WHERE id < 8;
SELECT left(t, 1) AS first, string_agg(t, '|' ORDER BY id DESC) FROM texts WHERE id < 16 GROUP BY first;
SELECT count(*) FROM texts AS one JOIN texts AS other ON one.t = other.u;
SELECT count(*) FROM texts AS one JOIN texts AS other ON lower(one.t) = lower(other.t) WHERE one.t ~ '^[ -~]*$' AND other.t ~ '^[ -~]*$';
SELECT one.t, other.t FROM texts AS one JOIN texts AS other ON other.t LIKE one.t || '%' AND one.id <> other.id WHERE one.t LIKE 'a%' AND length(one.t) > 1 AND strpos(one.t, chr(92)) = 0 AND one.t <> 'a%b';

-- Text over many row groups: columns of few and of many different values.
SELECT tag, count(*) FROM numbers GROUP BY tag;
SELECT count(*) FROM numbers WHERE tag = 'red';
SELECT count(*) FROM numbers WHERE tag <> 'red';
SELECT count(*) FROM numbers WHERE tag LIKE '%e%';
SELECT count(*) FROM numbers WHERE tag IN ('red', 'green', 'plaid');
SELECT count(*) FROM numbers WHERE tag >= 'c' AND tag < 'h';
SELECT count(*), min(note), max(note) FROM numbers WHERE note LIKE 'note 00%';
SELECT count(*), min(note), max(note) FROM numbers WHERE note LIKE '%777%';
SELECT count(*) FROM numbers WHERE note ~ '^note [0-4]*$';
SELECT count(*) FROM numbers WHERE note ~ '^.*(12|21)34.*$' AND tag <> 'blue';
SELECT count(*) FROM numbers WHERE note = 'note 0000000000';
SELECT count(*), count(DISTINCT note) FROM numbers WHERE id < 50000;
SELECT upper(tag) AS loud, sum(k) FROM numbers GROUP BY loud;
SELECT length(note), count(*) FROM numbers GROUP BY length(note);
SELECT substr(note, 6, 2) AS two, count(*) FROM numbers WHERE id < 100000 GROUP BY two ORDER BY two LIMIT 10;
SELECT note FROM numbers ORDER BY note LIMIT 3;
SELECT note FROM numbers ORDER BY note DESC NULLS LAST LIMIT 3;
