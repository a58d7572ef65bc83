-- What each line holds at the end, from all events: allocated less freed.
WITH held AS (
    SELECT run, rank, process, stack, CASE WHEN kind = 'block' THEN 'block' ELSE 'driver' END AS level,
           sum(CASE WHEN event = 'alloc' THEN bytes * weight ELSE -bytes * weight END) AS bytes
    FROM events
    WHERE event IN ('alloc', 'free') AND device IS NOT NULL
    GROUP BY 1, 2, 3, 4, 5
)
SELECT h.run, h.level,
       coalesce(s.line, s.function, 'not known') AS line,
       CAST(round(sum(h.bytes)) AS BIGINT) AS bytes,
       count(DISTINCT h.rank) AS ranks
FROM held h
LEFT JOIN stacks s ON s.run = h.run AND s.rank = h.rank AND s.process = h.process AND s.stack = h.stack
WHERE h.bytes > 0
GROUP BY 1, 2, 3
ORDER BY bytes DESC, h.level, line
LIMIT 20
