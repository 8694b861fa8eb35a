-- @include finish
-- The dead letters of a queue: kept for this long, and this many of them, the newest.
local LETTER_TTL_S, LETTERS_MAX = 1209600, 100000

-- Adds a message to the dead letters, under a name that no other has. `r` is what is known of its job, {id, step,
-- attempts, created, traceback}; without an id the message is no job that could run.
local function add_dead_letter(queue, name, token, reason, raw, message, r)
  local prefix = keys.letters .. queue .. ':'
  if call('EXISTS', prefix .. name) == 1 then name = name .. '.' .. token end
  call('ZADD', KEYS[10], NOW, name)
  call('HSET', prefix .. name, 'reason', reason, 'raw', raw, 'at', NOW, 'error', message, 'id', r.id or '',
    'step', r.step or '0', 'attempts', r.attempts or '0', 'created', r.created or NOW, 'traceback', r.traceback or '')
  call('EXPIRE', prefix .. name, LETTER_TTL_S)
  add_to_counter(queue, 'dead', 1)
  call('ZREMRANGEBYSCORE', KEYS[10], '-inf', whole(NOW_US - LETTER_TTL_S * 1e6))
  local over = call('ZCARD', KEYS[10]) - LETTERS_MAX
  if over > 0 then
    for _, old in ipairs(call('ZRANGE', KEYS[10], 0, over - 1)) do call('UNLINK', prefix .. old) end
    call('ZREMRANGEBYRANK', KEYS[10], 0, over - 1)
  end
end
