-- Record the heartbeat of a background worker, and requeue the tasks of dead ones. KEYS: none.
-- ARGV: 1 the live worker ('': none), 2 its state, 3 for how many seconds that is valid, then workers whose tasks are
--       requeued because they are dead or have restarted.
-- The tasks of workers without a valid heartbeat are requeued too. Returns how many tasks were requeued.
local QUEUE, OWNERS, PREFIX = 'headrace:errands', 'hr:errands:owners', 'hr:errands:'
local living, requeued = ARGV[1], 0

-- At the end from which tasks are taken, so that the one that has waited longest is next.
local function requeue(owner, raws)
  in_chunks('RPUSH', QUEUE, raws)
  redis.call('UNLINK', PREFIX .. 'taken:' .. owner, PREFIX .. 'held:' .. owner)
  redis.call('SREM', OWNERS, owner)
  requeued = requeued + #raws
end

local function messages_of(owner)
  local raws, held = redis.call('LRANGE', PREFIX .. 'taken:' .. owner, 0, -1), redis.call('HVALS', PREFIX .. 'held:' .. owner)
  for _, raw in ipairs(held) do raws[#raws + 1] = raw end
  return raws
end

redis.call('LLEN', QUEUE)
local dead = {}
for i = 4, #ARGV do dead[ARGV[i]] = true end
for _, owner in ipairs(redis.call('SMEMBERS', OWNERS)) do
  if owner ~= living and redis.call('EXISTS', PREFIX .. 'alive:' .. owner) == 0 then dead[owner] = true end
end
for owner in pairs(dead) do dead[owner] = messages_of(owner) end
for owner, raws in pairs(dead) do
  requeue(owner, raws)
  if owner ~= living then redis.call('UNLINK', PREFIX .. 'alive:' .. owner) end
end
if living ~= '' then
  redis.call('SADD', OWNERS, living)
  redis.call('SET', PREFIX .. 'alive:' .. living, ARGV[2], 'EX', ARGV[3])
end
return requeued
