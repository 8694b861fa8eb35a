-- Request the cancellation of a batch; its runner sees that when it renews its lease. KEYS: none. ARGV: 1 id.
-- Returns {1 or 0 (it has ended, or is about to), its record as HGETALL...}; {0} if it does not exist.
local batch = keys.batch .. ARGV[1]
local status = redis.call('HGET', batch, 'status')
local asked = status == 'validating' or status == 'in_progress'
if asked then redis.call('HSET', batch, 'status', 'cancelling', 'cancelling_at', time[1]) end
local answer = redis.call('HGETALL', batch)
table.insert(answer, 1, (asked or status == 'cancelling') and 1 or 0)
return answer
