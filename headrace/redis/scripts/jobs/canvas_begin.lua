-- Begin to send the callbacks of a leased job; from then on a cancel comes too late.
-- KEYS: none. ARGV: 1 id, 2 token. Returns 1 send them, 0 the lease is lost, 3 the job ends as cancelled.
local job = keys.job .. ARGV[1]
local token, state, cancel = unpack(read(ARGV[1], 't', 's', 'cr'))
if token ~= ARGV[2] or state ~= 'r' then return 0 end
-- At maxmemory a script may write if it begins with a removal.
call('HDEL', job, 'fw')
if cancel then return 3 end
call('HSET', job, 'fw', token)
return 1
