-- @include release, queues
-- Move leased jobs from a queue to the queue of the version that they ask for, uncharged.
-- KEYS: the queue's. ARGV: 1 queue, 2 the version, then per job: id, token.
-- Returns per job what became of it: moved, cancelled, gone, or fenced.
check_types(true)
local model = model_of(ARGV[1])
local version, target = ARGV[2], queue_of(model, ARGV[2])
-- A wrong type fails here, before anything is written.
for s = 1, 4 do call('LLEN', list_of(target, s)) end
call('HLEN', keys.count .. target)

local function move(id)
  local step, attempts, cancel = unpack(read(id, 'p', 'a', 'cr'))
  local raw = call('HGET', KEYS[6], id)
  if cancel or not raw then return release(id, 'free', '', ARGV[1], '') end
  call('ZREM', KEYS[5], id)
  call('HDEL', KEYS[6], id)
  local s = STEP_INDEX[step or '0'] or 1
  local out = call('HGET', keys.count .. target, 'out' .. STEPS[s])
  local ticket = call('LPUSH', list_of(target, s), raw) + (tonumber(out or '0') or 0)
  local tokens = call('HGET', keys.job .. id, 'tk')
  if tokens then
    leave_order(ARGV[1], id)
    count_tokens(ARGV[1], -tokens_in(tokens))
    count_tokens(target, tokens_in(tokens))
  end
  call('HSET', keys.job .. id, 's', 'q', 'n', ticket, 'j', NOW, 'pv', version, 'v', version,
    'a', math.max(0, (tonumber(attempts or '0') or 0) - 1))
  call('HDEL', keys.job .. id, 't', 'st', 'xa')
  if tokens then join_order(target, s, id, ticket) end
  return 'moved'
end

local answer, moved = {}, false
for i = 3, #ARGV, 2 do
  local n = (i - 1) / 2
  local token, state = unpack(read(ARGV[i], 't', 's'))
  answer[n] = token == ARGV[i + 1] and state == 'r' and move(ARGV[i]) or 'fenced'
  moved = moved or answer[n] == 'moved'
end
if moved then note_version(model, version) end
return answer
