-- Record the heartbeat of a background worker, and requeue the tasks of dead ones. KEYS: none.
-- ARGV: 1 the live worker ('': none), 2 its state, then workers whose tasks are requeued because they are dead or have
--       restarted.
-- The tasks of workers without a valid heartbeat are requeued too, and webhooks that a dead one was sending are due at
-- once. Returns how many tasks were requeued.
-- It passes at maxmemory too, or every background worker would look dead.
local QUEUE, OWNERS = keys.BACKGROUND_TASKS, keys.BACKGROUND_WORKERS
local living, requeued = ARGV[1], 0

-- At the end from which tasks are taken, so that the one that has waited longest is next.
local function requeue(owner, raws)
  in_chunks('RPUSH', QUEUE, raws)
  call('UNLINK', keys.background_taken .. owner, keys.background_held .. owner)
  call('SREM', OWNERS, owner)
  requeued = requeued + #raws
end

-- A worker that has only lost its connection goes on with its webhooks.
local function send_again(owner)
  local sending = try('SMEMBERS', keys.background_sending .. owner)
  call('UNLINK', keys.background_sending .. owner)
  for _, member in ipairs(sending) do try('ZADD', keys.DUE_DELIVERIES, 'XX', NOW, member) end
end

local function messages_of(owner)
  local raws = call('LRANGE', keys.background_taken .. owner, 0, -1)
  for _, raw in ipairs(call('HVALS', keys.background_held .. owner)) do raws[#raws + 1] = raw end
  return raws
end

call('LLEN', QUEUE)
local dead = {}
for i = 3, #ARGV do dead[ARGV[i]] = true end
for _, owner in ipairs(call('SMEMBERS', OWNERS)) do
  if owner ~= living and call('EXISTS', keys.background_alive .. owner) == 0 then dead[owner] = true end
end
for owner in pairs(dead) do dead[owner] = messages_of(owner) end
call('SREM', OWNERS, '')
for owner, raws in pairs(dead) do
  requeue(owner, raws)
  if owner ~= living then
    call('UNLINK', keys.background_alive .. owner)
    send_again(owner)
  end
end
if living ~= '' then
  call('SADD', OWNERS, living)
  call('SET', keys.background_alive .. living, ARGV[2], 'EX', keys.BACKGROUND_TTL_S)
end
return requeued
