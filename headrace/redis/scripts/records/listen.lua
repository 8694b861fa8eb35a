-- Publish the end of a quiet job after all, as a client listens for it. KEYS: none. ARGV: 1 id.
-- It is a removal, which passes at maxmemory. Returns {1 if that changed anything, else 0}.
if read(ARGV[1], 'w')[1] ~= keys.NO_WAITER then return {0} end
return {call('HDEL', keys.job .. ARGV[1], 'w')}
