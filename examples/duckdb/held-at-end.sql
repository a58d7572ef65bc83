-- What each line holds at the end: the allocations that nothing freed.
WITH held AS (
    SELECT b.run, b.rank, b.process, b.stack, CASE WHEN b.kind = 'block' THEN 'block' ELSE 'driver' END AS level,
           sum(b.bytes * b.weight) AS bytes
    FROM blocks b
    WHERE b.end = 'live' AND b.device IS NOT NULL
    GROUP BY 1, 2, 3, 4, 5
)
SELECT h.run, h.level,
       coalesce(s.line, s.function, 'not known') AS line,
       CAST(round(sum(h.bytes)) AS BIGINT) AS bytes,
       count(DISTINCT h.rank) AS ranks
FROM held h
LEFT JOIN stacks s ON s.run = h.run AND s.rank = h.rank AND s.process = h.process AND s.stack = h.stack
GROUP BY 1, 2, 3
ORDER BY bytes DESC, h.level, line
LIMIT 20
