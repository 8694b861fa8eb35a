-- Mark that a leased job begins to run isolated, or that it has left its model process. Only a job with this mark can be
-- charged for the loss of its worker.
-- KEYS: none. ARGV: 1 id, 2 token, 3 process (nothing else runs in its process), reserve (nothing else will run in its
--       worker soon; not charged yet), worker (nothing else runs in its worker), either (worker if no other job has that on
--       this host, else process) or end; 4 host.
-- Returns 0 the lease is lost, 1 it may run or its mark is removed, 2 it may run exclusively, now or soon, 3 another job of
-- this host runs exclusively, now or soon: both could be charged for one loss of the host.
local id, token, scope = ARGV[1], ARGV[2], ARGV[3]

-- Whether a job has a mark of an exclusive run that has not ended, or will begin soon.
local function runs_exclusively(other)
  local state, fence, mark = unpack(read(other, 's', 't', 'xa'))
  return state == 'r' and fence and (mark == fence .. ' ' .. EXCLUSIVE or mark == fence .. ' ' .. RESERVED)
end

local state, fence = unpack(read(id, 's', 't'))
if state ~= 'r' or fence ~= token then return 0 end
call('HDEL', keys.job .. id, 'xa')
if scope == 'end' then return 1 end
local mark, answer = token, 1
if scope ~= 'process' then
  local key = keys.exclusive .. ARGV[4]
  local holder = try('GET', key)
  local busy = type(holder) == 'string' and holder ~= id and runs_exclusively(holder)
  if busy and scope ~= 'either' then return 3 end
  if not busy then
    call('SET', key, id, 'EX', keys.EXCLUSIVE_TTL_S)
    mark, answer = token .. ' ' .. (scope == 'reserve' and RESERVED or EXCLUSIVE), 2
  end
end
call('HSET', keys.job .. id, 'xa', mark)
return answer
