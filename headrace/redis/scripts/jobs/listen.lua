-- Somebody listens for the end of a job of which nobody was to be told. KEYS: none. ARGV: 1 id.
-- Takes something away, which passes at maxmemory. Returns {1 where that has changed anything, else 0}.
if read(ARGV[1], 'w')[1] ~= NOBODY then return {0} end
return {redis.call('HDEL', JOB .. ARGV[1], 'w')}
