-- Renew leases of one queue. A lease that has expired but was not reaped is renewed too.
-- KEYS: the queue's. ARGV: 1 lease in us, then per job: id, token. Returns per job 1 renewed, 2 renewed but cancelled
-- meanwhile (see jobs/cancel.lua), 0 the lease is lost.
begin_with_removal(KEYS[5])
local lease_end = whole(NOW_US + tonumber(ARGV[1]))
local answer, renewed = {}, {}
for i = 2, #ARGV, 2 do
  local token, state, cancelled = unpack(read(ARGV[i], 't', 's', 'cr'))
  local ours = token == ARGV[i + 1] and state == 'r'
  answer[#answer + 1] = ours and (cancelled and 2 or 1) or 0
  if ours then
    renewed[#renewed + 1] = lease_end
    renewed[#renewed + 1] = ARGV[i]
  end
end
in_chunks('ZADD', KEYS[5], renewed)
return answer
