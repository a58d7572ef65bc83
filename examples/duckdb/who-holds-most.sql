-- The lines that hold most at the peaks of the devices, over all ranks. Blocks of a framework (`block`) lie in driver
-- memory: the two levels are not to be added.
WITH held AS (
    SELECT h.run, h.rank, h.level,
           coalesce(s.line, s.function, 'not known') AS line,
           CASE WHEN h.level = 'block' THEN s.block_library ELSE s.library END AS library,
           sum(h.peak_bytes) AS bytes
    FROM holders h
    LEFT JOIN stacks s ON s.run = h.run AND s.rank = h.rank AND s.process = h.process AND s.stack = h.stack
    GROUP BY 1, 2, 3, 4, 5
)
SELECT run, level, line, library,
       CAST(sum(bytes) AS BIGINT) AS bytes,
       count(*) AS ranks,
       CAST(max(bytes) AS BIGINT) AS most_of_a_rank
FROM held
WHERE bytes > 0
GROUP BY run, level, line, library
ORDER BY bytes DESC, level, line
LIMIT 20
